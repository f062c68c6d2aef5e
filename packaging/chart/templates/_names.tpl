{{- define "gemlet.labels" -}}
app.kubernetes.io/name: gemlet
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- /* Labels of the chart's own pods. The webhook must not be asked about them: before Kubernetes 1.21 namespaces have no label
with their name, by which the others are left out, and a webhook that is down could never start again. */ -}}
{{- define "gemlet.podLabels" -}}
{{ include "gemlet.labels" . }}
gemlet.dev/webhook: ignore
{{- end -}}

{{- define "gemlet.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- /* How GPUs are offered: dra, slots or units. Before 1.36 there may be claims that cannot take parts of a device. */ -}}
{{- define "gemlet.face" -}}
{{- $dra := eq .Values.mode "dra" -}}
{{- if eq .Values.mode "auto" -}}
{{- $dra = and (semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version) (.Capabilities.APIVersions.Has "resource.k8s.io/v1") -}}
{{- end -}}
{{- if $dra -}}dra{{- else -}}{{ .Values.devicePlugin.resources }}{{- end -}}
{{- end -}}

{{- /* What lets the agent's containers see the GPUs, as a list of variables. */ -}}
{{- define "gemlet.gpus" -}}
{{- if eq .Values.gpuAccess "simulated" -}}
- {name: GEMLET_SIM_DEVICES, value: {{ .Values.simulatedGpus | quote }}}
- {name: GEMLET_SIM_ISLANDS, value: {{ .Values.simulatedIslands | quote }}}
{{- else -}}
- {name: NVIDIA_VISIBLE_DEVICES, value: all}
- {name: NVIDIA_DRIVER_CAPABILITIES, value: utility}
{{- end -}}
{{- end -}}
