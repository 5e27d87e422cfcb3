"""Stand-ins and helpers that several tests share."""
