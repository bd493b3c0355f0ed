# Names. Two environments can share an account: in different regions without further changes (as test and production do), or
# in one region with different prefixes. So every name that must be unique in a region has the prefix, and every name that
# must be unique in the account has the region too.
locals {
  # The default names.
  cluster_name  = var.cluster_name != "" ? var.cluster_name : "${var.prefix}-cluster"
  custom_images = var.prefix == "pytorch-gpu-dev" ? "gpu-dev-custom-images" : "custom-images-${var.prefix}"
  # IAM is global.
  identity = "${var.prefix}-${var.aws_region}"
}
