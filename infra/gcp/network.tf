# One network with one subnet. Machines have public addresses, so that users can reach their dev servers by SSH. Kubernetes
# assigns dynamic NodePorts from 30086 on first.
resource "google_compute_network" "main" {
  name                    = "${var.prefix}-network"
  auto_create_subnetworks = false
}

resource "google_compute_subnetwork" "main" {
  name                     = "${var.prefix}-nodes"
  network                  = google_compute_network.main.id
  ip_cidr_range            = var.network_cidr
  private_ip_google_access = true

  secondary_ip_range {
    range_name    = "pods"
    ip_cidr_range = "10.16.0.0/14"
  }
  secondary_ip_range {
    range_name    = "services"
    ip_cidr_range = "10.20.0.0/20"
  }
}

resource "google_compute_firewall" "ssh" {
  count         = length(var.ssh_cidrs) > 0 ? 1 : 0
  name          = "${var.prefix}-ssh"
  network       = google_compute_network.main.id
  source_ranges = var.ssh_cidrs
  target_tags   = ["${var.prefix}-gpu"]

  allow {
    protocol = "tcp"
    ports    = ["30086-32767"]
  }
}

resource "google_compute_global_address" "api" {
  name = "${var.prefix}-api"
}

resource "google_compute_managed_ssl_certificate" "api" {
  name = "${var.prefix}-api"

  managed {
    domains = [var.api_domain]
  }
}
