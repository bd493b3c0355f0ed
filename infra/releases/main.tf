# The releases, in an order: what the GPU machines need, what watches, and then our own.
resource "helm_release" "gpu_operator" {
  count            = var.gpu_operator ? 1 : 0
  name             = "gpu-operator"
  repository       = "https://helm.ngc.nvidia.com/nvidia"
  chart            = "gpu-operator"
  version          = "v25.3.3"
  namespace        = "gpu-operator"
  create_namespace = true
  timeout          = 900
  values = [yamlencode({
    # The machines' images have both.
    driver  = { enabled = false }
    toolkit = { enabled = false }
  })]
}

resource "helm_release" "kube_prometheus_stack" {
  name             = "kube-prometheus-stack"
  repository       = "https://prometheus-community.github.io/helm-charts"
  chart            = "kube-prometheus-stack"
  version          = "67.9.0"
  namespace        = "monitoring"
  create_namespace = true
  timeout          = 900
  values = [yamlencode({
    grafana = { service = { type = "NodePort", nodePort = var.grafana_port } }
    prometheus = { prometheusSpec = {
      serviceMonitorSelectorNilUsesHelmValues = false
      podMonitorSelectorNilUsesHelmValues     = false
      ruleSelectorNilUsesHelmValues           = false
    } }
  })]
}

resource "helm_release" "gpu_dev_server" {
  name    = "gpu-dev"
  chart   = var.chart
  values  = var.chart_values
  timeout = 1200

  # It brings monitors of the Prometheus operator's kinds.
  depends_on = [helm_release.kube_prometheus_stack]
}
