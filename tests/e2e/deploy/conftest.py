from support.fixtures.charts import helm, plane
from support.fixtures.server_image import environment

__all__ = ["environment", "helm", "plane"]
