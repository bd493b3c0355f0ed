# EKS: the control plane, its administrators and its add-ons.
resource "aws_iam_role" "cluster" {
  name = "${local.identity}-cluster"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "eks.amazonaws.com" }
      Action    = "sts:AssumeRole"
    }]
  })
}

resource "aws_iam_role_policy_attachment" "cluster" {
  role       = aws_iam_role.cluster.name
  policy_arn = "arn:aws:iam::aws:policy/AmazonEKSClusterPolicy"
}

resource "aws_eks_cluster" "main" {
  name                      = local.cluster_name
  version                   = var.kubernetes_version
  role_arn                  = aws_iam_role.cluster.arn
  enabled_cluster_log_types = ["api", "audit", "authenticator"]
  # The add-ons below replace the default ones.
  bootstrap_self_managed_addons = false

  access_config {
    authentication_mode                         = "API"
    bootstrap_cluster_creator_admin_permissions = true
  }

  vpc_config {
    subnet_ids              = [for zone in local.zones : aws_subnet.public[zone].id]
    endpoint_private_access = true
    endpoint_public_access  = true
    public_access_cidrs     = var.kubernetes_api_cidrs
  }

  kubernetes_network_config {
    ip_family         = "ipv4"
    service_ipv4_cidr = local.services_cidr
  }

  encryption_config {
    resources = ["secrets"]
    provider {
      key_arn = aws_kms_key.main.arn
    }
  }

  # With STANDARD, AWS upgrades the cluster automatically when its version's support ends, even while users work on it.
  upgrade_policy {
    support_type = "EXTENDED"
  }

  depends_on = [aws_iam_role_policy_attachment.cluster, aws_cloudwatch_log_group.cluster]
}

resource "aws_eks_access_entry" "nodes" {
  cluster_name  = aws_eks_cluster.main.name
  principal_arn = aws_iam_role.node.arn
  type          = "EC2_LINUX"
}

resource "aws_eks_access_entry" "admin" {
  for_each      = var.cluster_admins
  cluster_name  = aws_eks_cluster.main.name
  principal_arn = each.value
}

resource "aws_eks_access_policy_association" "admin" {
  for_each      = var.cluster_admins
  cluster_name  = aws_eks_cluster.main.name
  principal_arn = each.value
  policy_arn    = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"

  access_scope {
    type = "cluster"
  }

  depends_on = [aws_eks_access_entry.admin]
}

locals {
  # Add-ons that nodes need to become ready come before the nodes; add-ons that need a node come after.
  addons_before_nodes = {
    "vpc-cni"    = { enableNetworkPolicy = "true" }
    "kube-proxy" = {}
  }
  addons_after_nodes = {
    "coredns"            = {}
    "aws-ebs-csi-driver" = {}
  }
}

resource "aws_eks_addon" "before_nodes" {
  for_each                    = local.addons_before_nodes
  cluster_name                = aws_eks_cluster.main.name
  addon_name                  = each.key
  configuration_values        = length(each.value) > 0 ? jsonencode(each.value) : null
  resolve_conflicts_on_create = "OVERWRITE"
  resolve_conflicts_on_update = "OVERWRITE"
}

resource "aws_eks_addon" "after_nodes" {
  for_each                    = local.addons_after_nodes
  cluster_name                = aws_eks_cluster.main.name
  addon_name                  = each.key
  service_account_role_arn    = each.key == "aws-ebs-csi-driver" ? aws_iam_role.ebs_csi.arn : null
  resolve_conflicts_on_create = "OVERWRITE"
  resolve_conflicts_on_update = "OVERWRITE"

  depends_on = [aws_autoscaling_group.cpu]
}
