"""`physis VERB`."""
