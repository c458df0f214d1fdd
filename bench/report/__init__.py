"""What the samples say: statistics, comparisons, tables, plots and the HTML page."""
