// SPDX-License-Identifier: Apache-2.0

package nl

// Names and version of the generic netlink families: two of the kernel (linux/smc.h), and
// one of this module for what the kernel does not have.
const (
	OwnFamilyName  = "SMCR_STACK"      // family of operations that only a stack in user space has
	FamilyName     = "SMC_GEN_NETLINK" // family of all objects except pnetids
	PNETFamilyName = "SMC_PNETID"      // family of pnetids
	familyVersion  = 1
)

// OwnAttributes is the first attribute type of this module, in every nest. The types of
// the kernel are far below, and the two flag bits of an attribute type are above.
const OwnAttributes = 0x2000

// Limits of the kernel.
const (
	MaxEIDLen = 32 // characters of an enterprise ID, blank-padded on the wire
	MaxUEIDs  = 4  // user-defined enterprise IDs (SMC_MAX_UEID)
)

// Commands of SMC_GEN_NETLINK.
const (
	cmdGetSysInfo = iota + 1
	cmdGetLgrSMCR
	cmdGetLinkSMCR
	cmdGetLgrSMCD
	cmdGetDevSMCD
	cmdGetDevSMCR
	cmdGetStats
	cmdGetFbackStats
	cmdDumpUEID
	cmdAddUEID
	cmdRemoveUEID
	cmdFlushUEID
	cmdDumpSEID
	cmdEnableSEID
	cmdDisableSEID
	cmdDumpHSLimitation
	cmdEnableHSLimitation
	cmdDisableHSLimitation
)

// Commands of SMC_PNETID.
const (
	cmdPNETGet = iota + 1
	cmdPNETAdd
	cmdPNETDel
	cmdPNETFlush
)

// Commands of SMCR_STACK.
const (
	cmdOwnDeleteLink = iota + 1
	cmdOwnDeleteLinkGroup
	cmdOwnTrace
	cmdOwnGetAttached
	cmdOwnAttach
	cmdOwnDetach
	cmdOwnEnter
	cmdOwnListen // with descriptors
	cmdOwnGetLearnt
)

// Attributes of SMCR_STACK requests and answers.
const (
	attrOwnLinkGroup = iota + 1
	attrOwnLink
	attrOwnTraceID
	attrOwnTraceEnd
	attrOwnTraceTypes
	attrOwnTrace      // a nest, as those that follow
	attrOwnTraceConn  // of a connection
	attrOwnTraceEvent // of an event
	attrOwnAttach     // a nest: an attached cgroup
	attrOwnLearnt     // a nest: what was learnt of a peer
)

// Attributes of the nest of what was learnt of a peer.
const (
	attrLearntEveryone = iota + 1
	attrLearntUID
	attrLearntLocal
	attrLearntRemote
	attrLearntWhy
	attrLearntLeft // in ms
	attrLearntPeer
)

// Attributes of the nest of an attached cgroup.
const (
	attrAttachPath = iota + 1
	attrAttachCgroup
	attrAttachUID
	attrAttachRun
	attrAttachConnect
	attrAttachAccept
	attrAttachAlways
	attrAttachSMCR
	attrAttachTCP   // a nest for each reason
	attrAttachReset // likewise
)

// Attributes of the nest of connections that the stack has reset.
const (
	attrResetWhy = iota + 1
	attrResetCount
)

// Attributes of the nests of a trace.
const (
	attrTraceID = iota + 1
	attrTraceLost
	attrTraceTime // nanoseconds since 1970
	attrTraceType
	attrTraceOut
	attrTraceGroup
	attrTraceRoCE
	attrTraceLocal // address and port in network byte order
	attrTraceRemote
	attrTraceQPN
	attrTracePeerQPN
	attrTraceLength
	attrTraceData
	attrTraceRole
	attrTraceGID
	attrTracePeerGID
	attrTraceToken
	attrTracePeerToken
)

// Top-level attributes of SMC_GEN_NETLINK answers; each is a nest.
const (
	attrSysInfo = iota + 1
	attrLgrSMCR
	attrLinkSMCR
	attrLgrSMCD
	attrDevSMCD
	attrDevSMCR
	attrStats
	attrFbackStats
)

// Attributes of a system information nest.
const (
	attrSysVer = iota + 1
	attrSysRel
	attrSysISMv2
	attrSysLocalHost
	attrSysSEID
	attrSysSMCRv2
)

// Own attributes of a system information nest.
const (
	attrSysStack = OwnAttributes + iota
	attrSysStackVersion
	attrSysPID
	attrSysUID
	attrSysRoCE // bit 0: version 1, bit 1: version 2
	attrSysStateFile
	attrSysStateError
	_              // of earlier releases
	attrSysProblem // may be repeated
	attrSysNoWire
	attrSysConfigFile // may be repeated
)

// Attributes of an SMC-R link group nest.
const (
	attrLgrRID = iota + 1
	attrLgrRRole
	attrLgrRType
	attrLgrRPNETID
	attrLgrRVLAN
	attrLgrRConns
	attrLgrRV2Common
	attrLgrRV2
	attrLgrRNetCookie
	attrLgrRPad
	attrLgrRBufType
	attrLgrRSndbufAlloc
	attrLgrRRMBAlloc
)

// Own attributes of a link group nest.
const (
	attrLgrFullVLAN = OwnAttributes + iota
	attrLgrPeerID
	attrLgrPeer
	attrLgrLinks
)

// Attributes of the nest that both kinds of link group have in version 2. The numbers
// begin at 0.
const (
	attrV2Ver = iota
	attrV2Rel
	attrV2OS
	attrV2NegEID
	attrV2PeerHost
)

// Attributes of the version 2 nest of an SMC-R link group.
const (
	attrRV2Direct = iota + 1
	attrRV2MaxConns
	attrRV2MaxLinks
)

// Attributes of a link nest.
const (
	attrLinkID = iota + 1
	attrLinkIBDev
	attrLinkIBPort
	attrLinkGID
	attrLinkPeerGID
	attrLinkConns
	attrLinkNetDev
	attrLinkUID
	attrLinkPeerUID
	attrLinkState
)

// Own attributes of a link nest.
const (
	attrLinkQPN = OwnAttributes + iota
	attrLinkPeerQPN
	attrLinkMTU
	attrLinkRetransmits
	attrLinkTimeouts
)

// Attributes of an SMC-D link group nest.
const (
	attrLgrDID = iota + 1
	attrLgrDGID
	attrLgrDPeerGID
	attrLgrDVLAN
	attrLgrDConns
	attrLgrDPNETID
	attrLgrDCHID
	attrLgrDPad
	attrLgrDV2Common
	attrLgrDExtGID
	attrLgrDPeerExtGID
	attrLgrDSndbufAlloc
	attrLgrDDMBAlloc
)

// Attributes of a device nest.
const (
	attrDevUseCount = iota + 1
	attrDevCritical
	attrDevPCIFID
	attrDevPCICHID
	attrDevPCIVendor
	attrDevPCIDevice
	attrDevPCIID
	attrDevPort
	attrDevPort2
	attrDevIBName
)

// Own attributes of a device nest.
const (
	attrDevProvider = OwnAttributes + iota
	attrDevRefusedSource
	attrDevRefusedPSN
	attrDevRefusedKey
	attrDevRetransmits
	attrDevTimeouts
)

// Attributes of a port nest.
const (
	attrPortPNETUser = iota + 1
	attrPortPNETID
	attrPortNetDev
	attrPortState
	attrPortValid
	attrPortLinks
)

// Own attributes of a port nest.
const (
	attrPortGID = OwnAttributes + iota
	attrPortMTU
)

// Attributes of the statistics nest.
const (
	attrStatsSMCD = iota + 1
	attrStatsSMCR
	attrStatsClientHSErr
	attrStatsServerHSErr
)

// Attributes of a technology nest within the statistics.
const (
	attrTechTXBufSizes = iota + 1
	attrTechRXBufSizes
	attrTechTXSizes
	attrTechRXSizes
	attrTechTXBufs
	attrTechRXBufs
	attrTechClientV1
	attrTechClientV2
	attrTechServerV1
	attrTechServerV2
	attrTechSendpage
	attrTechSplice
	attrTechCork
	attrTechNoDelay
	attrTechUrgent
	attrTechRXBytes
	attrTechTXBytes
	attrTechRXCalls
	attrTechTXCalls
	attrTechRXUsage
	attrTechTXUsage
)

// Attributes of a buffer nest within the statistics.
const (
	attrBufSmallPeer = iota + 1
	attrBufSmall
	attrBufFullPeer
	attrBufFull
	attrBufReuse
	attrBufAlloc
	attrBufDowngrade
)

// Attributes of a fallback nest.
const (
	attrFbackType = iota + 1
	attrFbackServerTotal
	attrFbackClientTotal
	attrFbackReason
	attrFbackCount
)

// Own attributes of the statistics nest.
const (
	attrStatsPanics = OwnAttributes + iota
	_               // of earlier releases
	_               // of earlier releases
	attrStatsFailovers
	attrStatsClientHSTimes
	attrStatsServerHSTimes
	attrStatsEngine
)

// Attributes of a nest of durations within the statistics: the sum, and the first class.
const (
	attrTimesSum = OwnAttributes + iota
	attrTimesCounts
)

// Attributes of an engine nest within the statistics.
const (
	attrEngineThreads = OwnAttributes + iota
	attrEngineCPU
	attrEngineRounds
	attrEngineSleeps
)

// Own attributes of a fallback nest.
const (
	attrFbackFullCount = OwnAttributes + iota
	attrFbackPeerReason
)

// Flat attributes of the enterprise ID and handshake limitation commands.
const (
	attrUEID        = 1
	attrSEID        = 1
	attrSEIDEnabled = 2
	attrHSEnabled   = 1
)

// Attributes of SMC_PNETID.
const (
	attrPNETName = iota + 1
	attrPNETNetDev
	attrPNETIBDev
	attrPNETIBPort
)

// Attributes of an SMC sock_diag answer (linux/smc_diag.h).
const (
	attrDiagConnInfo = iota + 1
	attrDiagLgrInfo
	attrDiagShutdown
	attrDiagDMBInfo
	attrDiagFallback
)

// Own attributes of a sock_diag answer.
const (
	attrDiagLinkGroup = OwnAttributes + iota
	attrDiagPID
	attrDiagCommand
	attrDiagTXBytes
	attrDiagRXBytes
)
