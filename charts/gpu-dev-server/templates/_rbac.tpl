{{/* Binds a role to the service account of the same service: (dict "root" $ "app" APP "kind" "Role" "name" NAME). */}}
{{- define "gpu-dev.binding" }}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}Binding
metadata:
  name: {{ .name }}
  {{- if eq .kind "Role" }}
  namespace: {{ .root.Values.namespaces.workloads }}
  {{- end }}
  labels:
    {{- include "gpu-dev.app-labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ .app }}
    namespace: {{ .root.Values.namespaces.controlplane }}
{{- end }}
