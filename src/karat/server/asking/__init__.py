"""What a request asks for, whatever its protocol."""
