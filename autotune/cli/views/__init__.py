"""Reports as tables and lines of text."""
