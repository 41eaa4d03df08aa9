"""What an answer has, whatever its protocol."""
