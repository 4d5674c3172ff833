"""One file an engine: ``load(settings)`` returns its versions and a function that answers requests.

The engine's own Python runs these files through ``serve.py``, in an environment where Outpace is not installed:
they import nothing of ours, and nothing of ours imports them.
"""
