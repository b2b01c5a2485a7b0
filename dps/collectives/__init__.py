"""Sums and gathering over the workers of a run, without a ps: all hold the same bits afterwards."""
