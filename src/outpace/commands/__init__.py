"""One module a subcommand: the module's name is the command's, its docstring the help.

Each has ``add_arguments(parser)`` and ``run(args) -> int``, the exit status. They import numpy and what needs
it inside ``run``, so that help and errors in the arguments come at once.
"""
