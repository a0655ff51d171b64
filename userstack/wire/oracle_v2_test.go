// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"smcr/smc"
	"strings"
)

const (
	eidAShown = "A-B.C                           "
	eidBShown = "Z9                              "
	zeros12   = "00:00:00:00:00:00:00:00:00:00:00:00"
)

// tshark 4.0 knows version 2, but shows the vendor's bytes, the fields of
// release 1 and, where version 1 is not offered, the MAC as reserved.
var oracleCLCV2 = []oracleCase{
	{figuresV2["clc_proposal.offer"], "CLC Message: Proposal (1)", map[string]string{
		"smc.length":                           "281",
		"smc.proposal.smc.version":             "2",
		"smc.proposal.smc.type":                "3",
		"smc.proposal.smcv2.type":              "3",
		"smc.proposal.smcv1_subnet_ext_offset": "0x0028",
		"smc.proposal.smcv2_ext_offset":        "0x0035",
		"smc.proposal.smcdv2_ext_offset":       "0x0060",
		"smc.proposal.smc.version.relnum":      "1",
		"smc.proposal.eid.count":               "2",
		"smc.proposal.eid":                     eidAShown + " " + eidBShown,
		"smc.proposal.smc.seid":                "1",
		"smc.proposal.system.eid":              "IBM-" + strings.Repeat("0", 28),
		"smc.proposal.ismv2_gid_count":         "2",
		"smc.proposal.ism.gid":                 "0x7172737475767778 0x1112131415161718 0x2122232425262728",
		"smc.proposal.smc.chid":                "0x8182 0x191a 0x191a",
		"smc.proposal.rocev2.gid.ipv4":         "10.77.0.2",
		"smc.proposal.ipv6.prefix.value":       "2001:db8:2::",
		"smc.reserved": "91:92:93:94:95:96:97:98" + strings.Repeat(":00", 20) +
			" 00:00 00 00:00 00:00:00:00:00:00:00:00:00:00:ff:ff c8:03:12:34:" + zeros12 + " " + zeros12 + ":00:00:00:00",
	}},
	{figuresV2["clc_proposal.offer_v2_only"], "CLC Message: Proposal (1)", map[string]string{
		"smc.length":                      "188",
		"smc.proposal.smc.type":           "2",
		"smc.proposal.smcv2.type":         "0",
		"smc.proposal.smcv2_ext_offset":   "0x001c",
		"smc.proposal.smcdv2_ext_offset":  "0x0000",
		"smc.proposal.smc.version.relnum": "0",
		"smc.proposal.eid":                eidBShown + " " + eidAShown,
		"smc.proposal.rocev2.gid.ipv4":    "10.77.0.2",
		"smc.reserved": zeros12 + ":00:00:00:00:c1:c2:c3:c4:c5:c6 00:00 00:00 " + strings.Repeat("00:", 27) + "00" +
			" 00 00:00 00:00:00:00:00:00:00:00:00:00:ff:ff " + zeros12 + ":00:00:00:00",
	}},
	{figuresV2["clc_accept_v2.first"], "CLC Message: Accept (2)", map[string]string{
		"smc.length":                            "160",
		"smc.proposal.smc.version":              "2",
		"smc.proposal.first.contact":            "1",
		"smc.accept.server.preferred.gid":       "fe80::b1b2:b3b4:b5b6:b7b8",
		"smc.accept.server.qp.number":           "0x010203",
		"smc.accept.server.rmb.virtual.address": "0xf1f2f3f4f5f6f7f8",
		"smc.accept.initial.psn":                "0x0a0b0c",
		"smc.accept.eid":                        eidAShown,
		"smc.accept.v2_lg.type":                 "1",
		"smc.accept.os.type":                    "3",
		"smc.accept.smc.version.relnum":         "1",
		"smc.accept.peer.host.name":             "host.1                          ",
		"smc.reserved":                          "00 00 00:00:00:00:00:00:00:00 00:00 c8:03:12:34:21:22:23:24:00:00:00:00:00:00:00:00",
	}},
	{figuresV2["clc_accept_v2.next"], "CLC Message: Accept (2)", map[string]string{
		"smc.length":                 "108",
		"smc.proposal.smc.version":   "2",
		"smc.proposal.first.contact": "0",
		"smc.accept.eid":             eidBShown,
	}},
	{figuresV2["clc_confirm_v2.first"], "CLC Message: Confirm (3)", map[string]string{
		"smc.length":                       "196",
		"smc.confirm.first.contact":        "1",
		"smc.client.gid":                   "fe80::b1b2:b3b4:b5b6:b7b8",
		"smc.initial.psn":                  "0x0a0b0c",
		"smc.confirm.eid":                  eidAShown,
		"smc.accept.v2_lg.type":            "1",
		"smc.confirm.os.type":              "3",
		"smc.confirm.smc.version.relnum":   "1",
		"smc.confirm.peer.host.name":       "host.1                          ",
		"smc.confirm.gid.list.entry_count": "2",
		"smc.confirm.gid.list.entry":       "fe80::b1b2:b3b4:b5b6:b7b8 ::ffff:10.77.0.2",
		"smc.reserved":                     "00 00 00:00:00:00:00:00:00:00 00:00 c8:03:12:34:21:22:23:24:00:00:00:00:00:00:00:00 00:00:00",
	}},
	{figures["clc_decline.linux_v2"], "CLC Message: Decline (4)", map[string]string{
		"smc.length":              "44",
		"smc.decline.smc.version": "2",
		"smc.decline.os.type":     "2",
		"smc.sender.peer.id":      "0xa1a2a3a4a5a6a7a8",
		"smc.peer.diag.info":      "0x03030008 0x01020304 0x05060708 0x090a0b0c 0x0d0e0f10",
	}},
}

// tshark 4.0 reads LLC version 2 with a big-endian length, as it is specified,
// and takes that of a little-endian Linux for malformed; so LLCV2Little is left
// to the captures.
var oracleLLCV2 = []oracleCase{
	{figuresV2["llc2_confirm_link.spec"], "LLC Message: Confirm Link (v2) (0x21)", map[string]string{
		"smc.length":                          "44",
		"smc.confirm.link.response":           "1",
		"smc.confirm.link.sender.mac":         "c1:c2:c3:c4:c5:c6",
		"smc.sender.gid":                      "fe80::b1b2:b3b4:b5b6:b7b8",
		"smc.confirm.link.sender.qp.number":   "0x010203",
		"smc.confirm.link.number":             "0x05",
		"smc.confirm.link.sender.link.userid": "0xd1d2d3d4",
		"smc.confirm.link.max.links":          "0x03",
	}},
	// It shows the extension of a request, not that of a reply.
	{figAddLink(LLCV2, false, figPairs), "LLC Message: Add Link (v2) (0x22)", map[string]string{
		"smc.length":                     "104",
		"smc.add.link.response":          "0",
		"smc.add.link.direct_link":       "1",
		"smc.add.link.client_target_gid": "::ffff:10.77.1.2",
		"smc.add.link.rkey_count":        "2",
		"smc.add.link.rmb.RTok.Rkey1":    "0x11121314 0x41424344",
		"smc.add.link.rmb.RTok.Rkey2":    "0x21222324 0x51525354",
		"smc.add.link.rmb.RTok.virt":     "0x3132333435363738 0x6162636465666768",
	}},
	{figuresV2["llc2_add_link.spec"], "LLC Message: Add Link (v2) (0x22)", map[string]string{
		"smc.length":                    "104",
		"smc.add.link.response":         "1",
		"smc.add.link.sender.mac":       "c1:c2:c3:c4:c5:c6",
		"smc.add.link.sender.gid":       "fe80::b1b2:b3b4:b5b6:b7b8",
		"smc.add.link.sender.qp.number": "0x010203",
		"smc.add.link.link.number":      "0x05",
		"smc.add.link.qp.mtu.value":     "4",
		"smc.add.link.initial.psn":      "0x0a0b0c",
	}},
	{
		ReqAddLink{Layout: LLCV2, GIDs: []smc.GID{figGID, ip4GID("10.77.1.2")}}, "LLC Message: Request Add Link (v2) (0x25)",
		map[string]string{
			"smc.length":                                "60",
			"smc.request.add.link.response":             "0",
			"smc.request.add.link.gid.list.entry_count": "2",
			"smc.request.add.link.gid.list.entry":       "fe80::b1b2:b3b4:b5b6:b7b8 ::ffff:10.77.1.2",
		},
	},
	{figuresV2["llc2_delete_link.spec"], "LLC Message: Delete Link (v2) (0x24)", map[string]string{
		"smc.length":                  "44",
		"smc.delete.link.response":    "1",
		"smc.delete.link.orderly":     "1",
		"smc.delete.link.number":      "0x05",
		"smc.delete.link.reason.code": "0x00100000",
	}},
	{figuresV2["llc2_confirm_rkey.spec"], "LLC Message: Confirm Rkey (v2) (0x26)", map[string]string{
		"smc.length":                         "44",
		"smc.confirm.rkey.response":          "1",
		"smc.confirm.rkey.negative.response": "1",
		"smc.confirm.rkey.retry.rkey.set":    "1",
		"smc.confirm.rkey.number.qp":         "2",
		"smc.confirm.rkey.new.rkey":          "0x11121314 0x31323334 0x51525354",
		"smc.confirm.rkey.new.virt":          "0x2122232425262728 0x4142434445464748 0x6162636465666768",
		"smc.confirm.rkey.link.number":       "0x02 0x03",
	}},
	{figuresV2["llc2_delete_rkey.ten"], "LLC Message: Delete Rkey (v2) (0x29)", map[string]string{
		"smc.length":               "48",
		"smc.delete.rkey.response": "0",
		"smc.delete.rkey.count":    "10",
		"smc.delete.rkey.deleted": "0x11121314 0x21222324 0x31323334 0x41424344 0x51525354 0x61626364 0x71727374 0x81828384 " +
			"0x91929394 0xa1a2a3a4",
	}},
	{figuresV2["llc2_test_link.spec"], "LLC Message: Test Link (v2) (0x27)", map[string]string{
		"smc.length":             "44",
		"smc.test.link.response": "1",
	}},
}
