"""Traffic intake: files of requests in, sampled requests out. Request text is private here."""
