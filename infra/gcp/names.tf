# What things are called. Two environments can be in one project if their prefixes differ: every name that must be the
# only one of its kind there begins with the prefix.
locals {
  cluster_name = var.cluster_name != "" ? var.cluster_name : "${var.prefix}-cluster"
}
