"""Files of data sets: where they are found, what is in compressed ones, and the cache of decoded arrays.

:mod:`fedjax_drag.data.sets` reads them and says what the numbers in them mean.
"""
