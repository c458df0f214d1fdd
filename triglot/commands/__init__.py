"""The commands of the command line, one file each: they read options, call the public API and print tables.

Commands import ``triglot.tables`` when they run, because importing Rich takes longer than printing ``--help``.
"""
