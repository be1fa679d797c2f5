"""The numbered rules of a well-formed executable, exe-W1 to exe-W24; `wellformed.py` first."""
