// SPDX-License-Identifier: Apache-2.0

package reasons

import "smcr/smc"

// labels are the names of the codes in the label reason of metrics. They must not change:
// alerts and dashboards name them.
var labels = map[smc.Diagnosis]string{
	smc.DiagMem:             "no_memory",
	smc.DiagTimeoutConfLink: "confirm_link_timeout",
	smc.DiagTimeoutAddLink:  "add_link_timeout",
	smc.DiagConfig:          "configuration",
	smc.DiagPeerNoSMC:       "peer_without_smc",
	smc.DiagIPsec:           "ipsec",
	smc.DiagNoSMCDev:        "no_smc_device",
	smc.DiagNoSMCDDev:       "no_smcd_device",
	smc.DiagNoSMCRDev:       "no_smcr_device",
	smc.DiagNoISMv2:         "no_ism_v2",
	smc.DiagNoV2Ext:         "peer_without_v2",
	smc.DiagNoSMCDv2Ext:     "peer_without_smcd_v2",
	smc.DiagNoSEID:          "peer_without_seid",
	smc.DiagNoSMCDv2Dev:     "no_smcd_v2_device",
	smc.DiagNoUEID:          "no_common_ueid",
	smc.DiagRelease:         "release_mismatch",
	smc.DiagMaxConns:        "max_connections_mismatch",
	smc.DiagMaxLinks:        "max_links_mismatch",
	smc.DiagModeMismatch:    "mode_mismatch",
	smc.DiagRMBEEyecatcher:  "eyecatcher",
	smc.DiagSocketOption:    "socket_option",
	smc.DiagPrefixMismatch:  "subnet_mismatch",
	smc.DiagVLAN:            "vlan",
	smc.DiagISMVLAN:         "ism_vlan",
	smc.DiagNoActiveLink:    "no_active_link",
	smc.DiagNoServerLink:    "no_server_link",
	smc.DiagVersion:         "version_mismatch",
	smc.DiagMaxDMB:          "no_dmb",
	smc.DiagNoRoute:         "no_route",
	smc.DiagIndirect:        "routing_mismatch",
	smc.DiagSilent:          "silent_peer",
	smc.DiagCopied:          "option_replayed",
	smc.DiagNoPath:          "roce_blocked",
	smc.DiagLocal:           "local",
	smc.DiagShort:           "short_connections",
	smc.DiagSync:            "out_of_sync",
	smc.DiagPeerDeclined:    "peer_declined",
	smc.DiagInternal:        "internal_error",
	smc.DiagRToken:          "rtoken",
	smc.DiagReadyLink:       "link_not_ready",
	smc.DiagRegisterBuffers: "buffer_registration",
	smc.DiagOldTimeout:      "handshake_timeout",
	smc.DiagOldReply:        "invalid_reply",
	smc.DiagOldSend:         "send_failed",
	smc.DiagOldInternal:     "old_internal_error",
}

// Label returns the value of the label reason of metrics for a code, or "".
func Label(code smc.Diagnosis) string { return labels[code] }
