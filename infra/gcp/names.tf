# Names. Two environments can share a project if their prefixes differ: every name that must be unique in it begins with the
# prefix.
locals {
  cluster_name = var.cluster_name != "" ? var.cluster_name : "${var.prefix}-cluster"
}
