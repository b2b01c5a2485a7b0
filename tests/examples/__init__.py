"""The programs of examples/, run as users run them."""
