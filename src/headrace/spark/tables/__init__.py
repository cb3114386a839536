"""What a cluster knows of its groups, as tables: format "headrace" with the option "table"."""
