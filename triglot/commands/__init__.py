"""The commands of the command line, a file each: options in, tables and exit codes out."""
