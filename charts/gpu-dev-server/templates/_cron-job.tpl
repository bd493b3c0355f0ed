{{/* One pass every few minutes, one at a time: (dict "root" $ "app" APP "values" V "args" ARGS). */}}
{{- define "gpu-dev.cron-job" -}}
apiVersion: batch/v1
kind: CronJob
metadata:
  {{- include "gpu-dev.metadata" . | nindent 2 }}
spec:
  schedule: {{ .values.schedule | quote }}
  suspend: {{ .values.suspend }}
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: 240
  successfulJobsHistoryLimit: 3
  failedJobsHistoryLimit: 3
  jobTemplate:
    metadata:
      labels:
        {{- include "gpu-dev.app-labels" . | nindent 8 }}
    spec:
      # No retries: the next run comes soon.
      backoffLimit: 0
      activeDeadlineSeconds: 600
      template:
        metadata:
          labels:
            {{- include "gpu-dev.app-labels" . | nindent 12 }}
            gpu-dev/uses-database: "true"
          {{- with .values.podAnnotations }}
          annotations:
            {{- toYaml . | nindent 12 }}
          {{- end }}
        spec:
          serviceAccountName: {{ .app }}
          restartPolicy: Never
          {{- include "gpu-dev.pod-basics" (dict "root" .root "values" .values "uid" 65532 "token" true) | nindent 10 }}
          containers:
            - {{- include "gpu-dev.server-container" . | nindent 14 }}
          volumes:
            {{- include "gpu-dev.tmp-volume" . | nindent 12 }}
{{- end }}
