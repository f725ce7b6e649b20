"""Iceberg tables over the files of lake tables, for engines that read Iceberg. Only this package imports PyIceberg."""
