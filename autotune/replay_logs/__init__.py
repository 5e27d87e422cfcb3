"""`spectune replay`: a drafter scored on answers that a server gave and logged."""
