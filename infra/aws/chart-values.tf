# Values of charts/gpu-dev-server that are derived from the infrastructure. The tests render the chart with them.
locals {
  chart_image = {
    for name, build in local.builds : name => { repository = "${build.REGISTRY}/${build.IMAGE}", tag = build.TAG }
  }
  chart_role = {
    for name, role in aws_iam_role.service : name => { annotations = { "eks.amazonaws.com/role-arn" = role.arn } }
  }
  chart_values = {
    global = { image = local.chart_image["api-service"] }
    cloudProvider = {
      name            = "aws"
      region          = var.aws_region
      nodeGroupPrefix = var.prefix
      aws = {
        eksClusterName          = local.cluster_name
        primaryAvailabilityZone = local.primary_zone
      }
    }
    storage = { class = "gp3", createClass = true, isDefaultClass = true }
    settings = {
      GPU_DEV_AWS_LOGIN_ACCOUNTS = join(",", length(var.aws_login_accounts) > 0 ? var.aws_login_accounts : [data.aws_caller_identity.current.account_id])
      GPU_DEV_AWS_LOGIN_ROLES    = join(",", var.aws_login_roles)
      # The load balancer forwards through a machine, and only CloudFront can reach it.
      GPU_DEV_TRUSTED_PROXIES = var.vpc_cidr
    }
    devServers = {
      initImage       = "${local.chart_image["dev-server"].repository}:${local.chart_image["dev-server"].tag}"
      toleratedTaints = ["nvidia.com/gpu"]
      # A machine has one interface, so only a dev server on a whole machine gets it.
      wholeNodeResources = local.has_efa ? ["vpc.amazonaws.com/efa", "hugepages-2Mi"] : []
    }
    # Fixed ports of the machines, behind the load balancers of load-balancers.tf.
    apiService = {
      image       = local.chart_image["api-service"]
      public      = { enabled = true, type = "NodePort", nodePort = local.fixed_ports.api }
      serverNames = [local.api_host]
    }
    registryCaches = {
      service   = { type = "NodePort" }
      ghcr      = { nodePort = local.fixed_ports.ghcr }
      dockerhub = { nodePort = local.fixed_ports.dockerhub }
    }
    reservationProcessor = { image = local.chart_image["reservation-processor"], serviceAccount = local.chart_role["reservation-processor"] }
    availabilityUpdater  = { image = local.chart_image["availability-updater"], serviceAccount = local.chart_role["availability-updater"] }
    reservationExpiry    = { image = local.chart_image["reservation-expiry"], serviceAccount = local.chart_role["reservation-expiry"] }
    sshProxy             = { image = local.chart_image["ssh-proxy"] }
    toolbox              = { image = local.chart_image["api-service"], serviceAccount = local.chart_role["toolbox"] }
    monitoring           = { enabled = true }
  }
}
