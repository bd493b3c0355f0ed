# Permissions in AWS: the machines, the volume driver, and each service of the control plane. The services' actions are those
# that their code declares (../declared.json, written by tools/infra-declarations; a test compares).
resource "aws_iam_role" "node" {
  name = "${local.identity}-node"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "ec2.amazonaws.com" }
      Action    = "sts:AssumeRole"
    }]
  })
}

resource "aws_iam_role_policy_attachment" "node" {
  for_each   = toset(["AmazonEKSWorkerNodePolicy", "AmazonEKS_CNI_Policy", "AmazonEC2ContainerRegistryPullOnly", "AmazonSSMManagedInstanceCore"])
  role       = aws_iam_role.node.name
  policy_arn = "arn:aws:iam::aws:policy/${each.value}"
}

# Missing in AWS's own policy: the first pull through a cache creates its repository.
resource "aws_iam_role_policy" "node_pulls_through" {
  name = "pull-through-cache"
  role = aws_iam_role.node.name
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect   = "Allow"
      Action   = ["ecr:BatchImportUpstreamImage", "ecr:CreateRepository"]
      Resource = [for name in keys(local.cached_registries) : "arn:aws:ecr:${var.aws_region}:${data.aws_caller_identity.current.account_id}:repository/${name}/*"]
    }]
  })
}

resource "aws_iam_instance_profile" "node" {
  name = "${local.identity}-node"
  role = aws_iam_role.node.name
}

resource "aws_iam_openid_connect_provider" "cluster" {
  url            = aws_eks_cluster.main.identity[0].oidc[0].issuer
  client_id_list = ["sts.amazonaws.com"]
}

locals {
  issuer = replace(aws_eks_cluster.main.identity[0].oidc[0].issuer, "https://", "")
  # IAM conditions: which service account of the cluster may assume a role.
  trust_of = {
    for account in concat(["kube-system:ebs-csi-controller-sa"], [for name in keys(local.service_actions) : "gpu-controlplane:${name}"]) :
    account => jsonencode({
      Version = "2012-10-17"
      Statement = [{
        Effect    = "Allow"
        Principal = { Federated = aws_iam_openid_connect_provider.cluster.arn }
        Action    = "sts:AssumeRoleWithWebIdentity"
        Condition = {
          StringEquals = {
            "${local.issuer}:aud" = "sts.amazonaws.com"
            "${local.issuer}:sub" = "system:serviceaccount:${account}"
          }
        }
      }]
    })
  }
}

resource "aws_iam_role" "ebs_csi" {
  name               = "${local.identity}-ebs-csi"
  assume_role_policy = local.trust_of["kube-system:ebs-csi-controller-sa"]
}

resource "aws_iam_role_policy_attachment" "ebs_csi" {
  role       = aws_iam_role.ebs_csi.name
  policy_arn = "arn:aws:iam::aws:policy/service-role/AmazonEBSCSIDriverPolicy"
}

locals {
  service_actions = local.declared.aws.services
  # Limited to our resources: tagged with an owner, and not with another environment.
  only_on_ours = ["ec2:DeleteVolume", "ec2:ModifyVolume", "ec2:DeleteSnapshot"]
  # Limited to our groups of machines, by name.
  only_on_our_groups = ["autoscaling:StartInstanceRefresh"]
  our_groups         = "arn:aws:autoscaling:${var.aws_region}:${data.aws_caller_identity.current.account_id}:autoScalingGroup:*:autoScalingGroupName/${var.prefix}"
  service_policies = {
    for name, actions in local.service_actions : name => jsonencode({
      Version = "2012-10-17"
      Statement = concat(
        [{
          Sid      = "Declared"
          Effect   = "Allow"
          Action   = [for action in actions : action if !contains(concat(local.only_on_ours, local.only_on_our_groups), action)]
          Resource = "*"
        }],
        [for actions in [[for action in actions : action if contains(local.only_on_ours, action)]] : {
          Sid      = "DeclaredForOurOwn"
          Effect   = "Allow"
          Action   = actions
          Resource = "*"
          Condition = {
            Null                 = { "aws:ResourceTag/${local.declared.owner_tag}" = "false" }
            StringEqualsIfExists = { "aws:ResourceTag/${local.declared.environment_tag}" = var.prefix }
          }
        } if length(actions) > 0],
        [for actions in [[for action in actions : action if contains(local.only_on_our_groups, action)]] : {
          Sid      = "DeclaredForOurGroups"
          Effect   = "Allow"
          Action   = actions
          Resource = ["${local.our_groups}-gpu-nodes-*", "${local.our_groups}-cpu-nodes*"]
        } if length(actions) > 0],
      )
    })
  }
}

resource "aws_iam_role" "service" {
  for_each           = local.service_actions
  name               = "${local.identity}-${each.key}"
  assume_role_policy = local.trust_of["gpu-controlplane:${each.key}"]
}

resource "aws_iam_role_policy" "service" {
  for_each = local.service_policies
  name     = "declared"
  role     = aws_iam_role.service[each.key].name
  policy   = each.value
}
