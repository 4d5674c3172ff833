"""What several drafters share."""
