"""Training of drafters as a job: settings, answers, students, export."""
