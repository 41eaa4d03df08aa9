"""What an engine wrote: the format of a trace, reading and writing it, and choosing what it keeps."""
