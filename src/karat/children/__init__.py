"""The processes that Karat starts: none imports from the current folder, none outlives this one."""
