# Helm releases in the cluster, with values derived from the infrastructure.
provider "helm" {
  kubernetes = {
    host                   = aws_eks_cluster.main.endpoint
    cluster_ca_certificate = base64decode(aws_eks_cluster.main.certificate_authority[0].data)
    exec = {
      api_version = "client.authentication.k8s.io/v1beta1"
      command     = "aws"
      args        = ["eks", "get-token", "--region", var.aws_region, "--cluster-name", aws_eks_cluster.main.name]
    }
  }
}

module "releases" {
  source       = "../releases"
  chart        = "${local.root}/charts/gpu-dev-server"
  chart_values = compact([yamlencode(local.chart_values), var.chart_values])
  grafana_port = local.fixed_ports.grafana
  efa          = local.has_efa

  depends_on = [
    aws_autoscaling_group.cpu,
    aws_eks_addon.after_nodes,
    null_resource.api_service_image,
    null_resource.reservation_processor_image,
    null_resource.availability_updater_build,
    null_resource.reservation_expiry_build,
    null_resource.ssh_proxy_image,
    null_resource.dev_server_image,
  ]
}
