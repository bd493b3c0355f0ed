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

# Tells the kubelet of EFA's devices. Its own list of machine types is passed over: ours say by a label who has one.
resource "helm_release" "efa_device_plugin" {
  count      = var.efa ? 1 : 0
  name       = "aws-efa-k8s-device-plugin"
  repository = "https://aws.github.io/eks-charts"
  chart      = "aws-efa-k8s-device-plugin"
  version    = "v0.5.20"
  namespace  = "kube-system"
  timeout    = 900
  values = [yamlencode({
    supportedInstanceLabels = { keys = ["gpu-dev/efa"], values = ["true"] }
    tolerations             = [{ key = "nvidia.com/gpu", operator = "Exists" }]
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
    grafana = {
      service = { type = "NodePort", nodePort = var.grafana_port }
      # Empty: one that the chart makes up. Its own is known to everybody.
      adminPassword = ""
    }
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

output "installed" {
  description = "Name, chart, version and namespace of each."
  value = {
    for release in concat(helm_release.gpu_operator, helm_release.efa_device_plugin, [helm_release.kube_prometheus_stack, helm_release.gpu_dev_server]) :
    release.name => { chart = basename(release.chart), version = release.version, namespace = release.namespace }
  }
}
