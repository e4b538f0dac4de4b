"""The small shared module behind the book: data, nets, training, measurements, records and figures.

Import what you need from its files (``from bnmem import data, train``); importing the package itself loads nothing.
"""

__version__ = "0.1.0"
