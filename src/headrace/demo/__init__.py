"""The product's main job on real input: a year of flights through a share group into Spark."""
