// The kinds of the Prometheus operator (ServiceMonitor, PrometheusRule), as its own release defines them. Nothing of it
// is compiled, so `go mod tidy` would drop it.
module gpu-dev/tests/metrics/prometheus-operator

go 1.26.0

require github.com/prometheus-operator/prometheus-operator v0.91.0
