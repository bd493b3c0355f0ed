from support.fixtures.charts import helm
from support.fixtures.opentofu import aws_providers, aws_without_helm, clone, gcp_providers, tofu, tofu_program

__all__ = ["aws_providers", "aws_without_helm", "clone", "gcp_providers", "helm", "tofu", "tofu_program"]
