# What things are called. Two environments can be in one account: in different regions with nothing else different (as test
# and production are), and in one region with different prefixes. So every name that must be the only one of its kind in
# a region has the prefix, and one that must be so in the whole account the region too.
locals {
  # By default the names that people know.
  cluster_name  = var.cluster_name != "" ? var.cluster_name : "${var.prefix}-cluster"
  custom_images = var.prefix == "pytorch-gpu-dev" ? "gpu-dev-custom-images" : "custom-images-${var.prefix}"
  # IAM knows no regions.
  identity = "${var.prefix}-${var.aws_region}"
}
