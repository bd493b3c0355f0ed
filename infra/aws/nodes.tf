# The machines: one group of fixed size for each name in local.gpu_groups, and one for the control plane. Groups are keyed by
# name, so none depends on a position in a list.
data "aws_ssm_parameter" "gpu_node_image" {
  count = var.gpu_node_image == "" ? 1 : 0
  name  = "/aws/service/eks/optimized-ami/${var.kubernetes_version}/amazon-linux-2023/x86_64/nvidia/recommended/image_id"
}

data "aws_ssm_parameter" "cpu_node_image" {
  count = var.cpu_node_image == "" ? 1 : 0
  name  = "/aws/service/eks/optimized-ami/${var.kubernetes_version}/amazon-linux-2023/x86_64/standard/recommended/image_id"
}

locals {
  # An image id is not secret, but AWS's provider marks every parameter as sensitive.
  gpu_node_image = var.gpu_node_image != "" ? var.gpu_node_image : nonsensitive(data.aws_ssm_parameter.gpu_node_image[0].value)
  cpu_node_image = var.cpu_node_image != "" ? var.cpu_node_image : nonsensitive(data.aws_ssm_parameter.cpu_node_image[0].value)

  # Service addresses of the cluster; machines need them before they join.
  services_cidr = "172.20.0.0/16"

  # Pages of 2 MiB for the buffers of EFA's library; the number is that of AWS's EFA installer.
  efa_huge_pages = 5128

  about_cluster = {
    cluster  = aws_eks_cluster.main.name
    endpoint = aws_eks_cluster.main.endpoint
    ca       = aws_eks_cluster.main.certificate_authority[0].data
    services = local.services_cidr
    mirrors = {
      "ghcr.io"   = { server = "https://ghcr.io", cache = local.cache_urls.ghcr }
      "docker.io" = { server = "https://registry-1.docker.io", cache = local.cache_urls.dockerhub }
      # Images may also use the caches' own names, which only the cluster's DNS resolves, not the machines.
      "registry-ghcr.gpu-controlplane.svc.cluster.local:5000"      = { server = local.cache_urls.ghcr, cache = local.cache_urls.ghcr }
      "registry-dockerhub.gpu-controlplane.svc.cluster.local:5000" = { server = local.cache_urls.dockerhub, cache = local.cache_urls.dockerhub }
    }
  }
  cache_urls = { ghcr = "http://${aws_lb.caches.dns_name}:5000", dockerhub = "http://${aws_lb.caches.dns_name}:5001" }
}

resource "aws_launch_template" "gpu" {
  for_each      = local.gpu_groups
  name          = "${var.prefix}-gpu-${each.key}"
  image_id      = local.gpu_node_image
  instance_type = each.value.instance_type
  user_data = base64encode(templatefile("${path.module}/node-user-data.tftpl", merge(local.about_cluster, {
    labels     = merge({ GpuType = each.value.type, "gpu-dev/group" = each.key }, each.value.efa ? { "gpu-dev/efa" = "true" } : {})
    taints     = ["nvidia.com/gpu=true:NoSchedule"]
    huge_pages = each.value.efa ? local.efa_huge_pages : 0
  })))
  update_default_version = true

  iam_instance_profile {
    arn = aws_iam_instance_profile.node.arn
  }

  # A machine has a public address only with a single interface, of either kind.
  network_interfaces {
    device_index                = 0
    interface_type              = each.value.efa ? "efa" : null
    associate_public_ip_address = "true"
    delete_on_termination       = "true"
    security_groups = concat(
      [aws_security_group.nodes.id, aws_eks_cluster.main.vpc_config[0].cluster_security_group_id],
      each.value.efa ? [aws_security_group.efa.id] : [],
    )
  }

  block_device_mappings {
    device_name = "/dev/xvda"
    ebs {
      volume_size           = var.gpu_node_disk_gb
      volume_type           = "gp3"
      encrypted             = "true"
      delete_on_termination = "true"
    }
  }

  # One hop: dev servers cannot get the machine's credentials.
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  dynamic "placement" {
    for_each = each.value.placement ? [1] : []
    content {
      group_name = aws_placement_group.gpu[each.key].name
    }
  }

  dynamic "instance_market_options" {
    for_each = each.value.spot || each.value.capacity_block ? [1] : []
    content {
      market_type = each.value.spot ? "spot" : "capacity-block"
    }
  }

  dynamic "capacity_reservation_specification" {
    for_each = each.value.capacity_reservation_id != "" ? [1] : []
    content {
      capacity_reservation_target {
        capacity_reservation_id = each.value.capacity_reservation_id
      }
    }
  }

  dynamic "tag_specifications" {
    for_each = ["instance", "volume"]
    content {
      resource_type = tag_specifications.value
      tags          = { Name = "${var.prefix}-gpu-nodes-${each.key}", ManagedBy = "gpu-dev", Environment = var.environment }
    }
  }

  lifecycle {
    precondition {
      condition     = each.value.type != null
      error_message = length(var.gpu_groups) > 0 ? "Invalid group name ${each.key}: expected one of ${join(", ", keys(local.gpu_types))}, or one of them with -suffix. Add your own types to src/gpudev/domain/catalogue.toml." : "Invalid instance_type ${var.instance_type}: expected one of ${join(", ", keys(local.by_machine))}. For another machine with such GPUs, name the type: gpu_groups = { t4 = { instance_type = \"${var.instance_type}\", count = ${var.gpu_instance_count} } }."
    }
    precondition {
      condition     = contains(local.zones, each.value.zone)
      error_message = "Invalid zone ${each.value.zone} of the group ${each.key}: the zones of ${var.aws_region} are ${join(", ", local.zones)}."
    }
  }
}

resource "aws_autoscaling_group" "gpu" {
  for_each              = local.gpu_groups
  name                  = "${var.prefix}-gpu-nodes-${each.key}"
  min_size              = each.value.count
  max_size              = each.value.count
  desired_capacity      = each.value.count
  vpc_zone_identifier   = [aws_subnet.public[each.value.zone].id]
  health_check_type     = "EC2"
  protect_from_scale_in = false
  # Large machines may be unavailable for a while: the group retries, and nothing here waits for it.
  wait_for_capacity_timeout = "0"

  launch_template {
    id      = aws_launch_template.gpu[each.key].id
    version = aws_launch_template.gpu[each.key].latest_version
  }

  dynamic "tag" {
    for_each = merge(local.node_tags, { Name = "${var.prefix}-gpu-nodes-${each.key}", "gpu-dev-gpu-type" = each.value.type })
    content {
      key                 = tag.key
      value               = tag.value
      propagate_at_launch = true
    }
  }

  depends_on = [aws_eks_access_entry.nodes, aws_eks_addon.before_nodes]
}

locals {
  node_tags = { "kubernetes.io/cluster/${local.cluster_name}" = "owned", ManagedBy = "gpu-dev", Environment = var.environment }
}

resource "aws_launch_template" "cpu" {
  name          = "${var.prefix}-cpu"
  image_id      = local.cpu_node_image
  instance_type = var.cpu_instance_type
  user_data = base64encode(templatefile("${path.module}/node-user-data.tftpl", merge(local.about_cluster, {
    labels     = { "gpu-dev/group" = "control-plane" }
    taints     = []
    huge_pages = 0
  })))
  update_default_version = true

  iam_instance_profile {
    arn = aws_iam_instance_profile.node.arn
  }

  network_interfaces {
    device_index                = 0
    associate_public_ip_address = "true"
    delete_on_termination       = "true"
    security_groups             = [aws_security_group.nodes.id, aws_eks_cluster.main.vpc_config[0].cluster_security_group_id]
  }

  block_device_mappings {
    device_name = "/dev/xvda"
    ebs {
      volume_size           = 100
      volume_type           = "gp3"
      encrypted             = "true"
      delete_on_termination = "true"
    }
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  dynamic "tag_specifications" {
    for_each = ["instance", "volume"]
    content {
      resource_type = tag_specifications.value
      tags          = { Name = "${var.prefix}-cpu-nodes", ManagedBy = "gpu-dev", Environment = var.environment }
    }
  }
}

# In one zone, because the database's volumes cannot leave it.
resource "aws_autoscaling_group" "cpu" {
  name                      = "${var.prefix}-cpu-nodes"
  min_size                  = 1
  max_size                  = 4
  desired_capacity          = 2
  vpc_zone_identifier       = [aws_subnet.public[local.primary_zone].id]
  health_check_type         = "EC2"
  wait_for_capacity_timeout = "0"
  target_group_arns         = [for group in aws_lb_target_group.nodes : group.arn]

  launch_template {
    id      = aws_launch_template.cpu.id
    version = aws_launch_template.cpu.latest_version
  }

  dynamic "tag" {
    for_each = merge(local.node_tags, { Name = "${var.prefix}-cpu-nodes" })
    content {
      key                 = tag.key
      value               = tag.value
      propagate_at_launch = true
    }
  }

  depends_on = [aws_eks_access_entry.nodes, aws_eks_addon.before_nodes]
}
