"""`dps watch`: a page in the browser that shows a run, and its figures for Prometheus."""
