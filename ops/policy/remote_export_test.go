package policy

// Open functions for tests of this folder.
var (
	OpenOpenAIRemote = openOpenAI
	OpenSGLangRemote = openSGLang
)

type RemoteConfig = remoteConfig
