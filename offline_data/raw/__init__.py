"""Raw file formats that several sources share; none knows a source."""
