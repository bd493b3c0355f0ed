# Helm releases in the cluster, with values derived from the infrastructure.
data "google_client_config" "current" {}

provider "helm" {
  kubernetes = {
    host                   = "https://${google_container_cluster.main.endpoint}"
    token                  = data.google_client_config.current.access_token
    cluster_ca_certificate = base64decode(google_container_cluster.main.master_auth[0].cluster_ca_certificate)
  }
}

module "releases" {
  source       = "../releases"
  chart        = "${local.root}/charts/gpu-dev-server"
  chart_values = compact([yamlencode(local.chart_values), var.chart_values])
  grafana_port = 30080
  # GKE has its own driver and device plugin.
  gpu_operator = false

  depends_on = [google_container_node_pool.cpu, null_resource.server_image, null_resource.dev_server_image]
}

locals {
  chart_role = {
    for name, account in google_service_account.service : name => {
      annotations = { "iam.gke.io/gcp-service-account" = account.email }
    }
  }
  chart_values = {
    global = { image = { repository = "${local.registry}/${local.builds["server"].IMAGE}", tag = local.builds["server"].TAG } }
    cloudProvider = {
      name            = "gcp"
      region          = var.region
      nodeGroupPrefix = var.prefix
      gcp             = { gkeClusterName = local.cluster_name, zone = var.primary_zone, projectId = var.project }
    }
    storage = { class = "pd-ssd", createClass = true, isDefaultClass = false }
    devServers = {
      initImage       = "${local.registry}/${local.builds["dev-server"].IMAGE}:${local.builds["dev-server"].TAG}"
      toleratedTaints = ["nvidia.com/gpu"]
    }
    settings = {
      # Addresses of Google's load balancers.
      GPU_DEV_TRUSTED_PROXIES = "130.211.0.0/22,35.191.0.0/16"
      # They keep idle connections for 600 seconds, so the API must keep them longer.
      GPU_DEV_KEEP_ALIVE = "620"
    }
    apiService = {
      public      = { enabled = false }
      serverNames = [var.api_domain]
      ingress = {
        enabled = true
        host    = var.api_domain
        annotations = {
          "kubernetes.io/ingress.class"                 = "gce"
          "kubernetes.io/ingress.allow-http"            = "false"
          "kubernetes.io/ingress.global-static-ip-name" = google_compute_global_address.api.name
          "ingress.gcp.kubernetes.io/pre-shared-cert"   = google_compute_managed_ssl_certificate.api.name
        }
      }
    }
    # Artifact Registry has its own cache.
    registryCaches       = { enabled = false }
    reservationProcessor = { serviceAccount = local.chart_role["reservation-processor"] }
    availabilityUpdater  = { serviceAccount = local.chart_role["availability-updater"] }
    reservationExpiry    = { serviceAccount = local.chart_role["reservation-expiry"] }
    toolbox              = { serviceAccount = local.chart_role["toolbox"] }
    monitoring           = { enabled = true }
  }
}
