"""Files that come with spectuned: drafters for the embedded default, and how they are made."""
