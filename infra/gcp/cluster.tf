# GKE, with Workload Identity for the services, Dataplane V2 for network policies and the driver for persistent disks.
resource "google_service_account" "node" {
  account_id   = "${var.prefix}-node"
  display_name = "GPU dev servers: machines"
}

resource "google_project_iam_member" "node" {
  for_each = toset(["roles/container.defaultNodeServiceAccount", "roles/artifactregistry.reader"])
  project  = var.project
  role     = each.value
  member   = google_service_account.node.member
}

resource "google_container_cluster" "main" {
  name                     = local.cluster_name
  location                 = var.primary_zone
  network                  = google_compute_network.main.id
  subnetwork               = google_compute_subnetwork.main.id
  remove_default_node_pool = true
  initial_node_count       = 1
  datapath_provider        = "ADVANCED_DATAPATH"
  deletion_protection      = var.deletion_protection

  release_channel {
    channel = "STABLE"
  }

  ip_allocation_policy {
    cluster_secondary_range_name  = "pods"
    services_secondary_range_name = "services"
  }

  workload_identity_config {
    workload_pool = "${var.project}.svc.id.goog"
  }

  master_authorized_networks_config {
    dynamic "cidr_blocks" {
      for_each = var.kubernetes_api_cidrs
      content {
        cidr_block = cidr_blocks.value
      }
    }
  }

  addons_config {
    gce_persistent_disk_csi_driver_config {
      enabled = true
    }
  }

  node_config {
    service_account = google_service_account.node.email
  }

  lifecycle {
    # For the default pool, which is removed at once.
    ignore_changes = [node_config, initial_node_count]
  }
}

resource "google_container_node_pool" "cpu" {
  name           = "${var.prefix}-cpu-nodes"
  cluster        = google_container_cluster.main.id
  node_locations = [var.primary_zone]

  autoscaling {
    total_min_node_count = 1
    total_max_node_count = 4
  }
  initial_node_count = 2

  node_config {
    machine_type    = var.cpu_machine_type
    disk_size_gb    = 100
    disk_type       = "pd-balanced"
    service_account = google_service_account.node.email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]
    labels          = { "gpu-dev-group" = "control-plane" }

    workload_metadata_config {
      mode = "GKE_METADATA"
    }
  }

  lifecycle {
    ignore_changes = [initial_node_count]
  }
}

resource "google_container_node_pool" "gpu" {
  for_each       = local.gpu_pools
  name           = "${var.prefix}-${each.key}"
  cluster        = google_container_cluster.main.id
  node_locations = [each.value.zone]
  node_count     = each.value.count

  # Users work on these machines: only operators replace them.
  management {
    auto_repair  = false
    auto_upgrade = false
  }

  dynamic "placement_policy" {
    for_each = each.value.placement ? [1] : []
    content {
      type = "COMPACT"
    }
  }

  node_config {
    machine_type    = each.value.machine_type
    spot            = each.value.spot
    disk_size_gb    = var.gpu_node_disk_gb
    disk_type       = "pd-balanced"
    service_account = google_service_account.node.email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]
    tags            = ["${var.prefix}-gpu"]
    labels          = { GpuType = each.value.type, "gpu-dev-group" = each.key }

    guest_accelerator {
      type  = each.value.accelerator
      count = each.value.gpus
      gpu_driver_installation_config {
        gpu_driver_version = "LATEST"
      }
    }

    dynamic "reservation_affinity" {
      for_each = each.value.reservation != "" ? [each.value.reservation] : []
      content {
        consume_reservation_type = "SPECIFIC_RESERVATION"
        key                      = "compute.googleapis.com/reservation-name"
        values                   = [reservation_affinity.value]
      }
    }

    # Dev servers cannot get the machine's credentials.
    workload_metadata_config {
      mode = "GKE_METADATA"
    }
  }

  lifecycle {
    precondition {
      condition     = each.value.type != null
      error_message = "Invalid pool name ${each.key}: expected one of ${join(", ", keys(local.machines))}, or one of them with -suffix."
    }
    precondition {
      condition     = each.value.type == null || contains(keys(local.declared.gpu_types), coalesce(each.value.type, "none"))
      error_message = "The type of the pool ${each.key} is not in the server's catalogue."
    }
  }
}
