/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Credentials of S3: each place where they are searched, in their order, with a home folder and a
 * server of the test's own. Also renewal, and that no message shows a secret (P18).
 */
#include "helpers/http_bed.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "store/object/http/http.h"
#include "store/object/s3/s3_cred.h"

#define CANARY "CANARYsecretCANARY"
#define ANSWER(status, type, body) "HTTP/1.1 " status "\r\nConnection: close\r\nContent-Type: " type "\r\n\r\n" body

struct bed {
	struct http_bed http;
	char dir[64], path[128];
};

static void
clear_environment(void)
{
	static const char *const names[] = {"AWS_ACCESS_KEY_ID",
	                                    "AWS_SECRET_ACCESS_KEY",
	                                    "AWS_SESSION_TOKEN",
	                                    "AWS_PROFILE",
	                                    "AWS_WEB_IDENTITY_TOKEN_FILE",
	                                    "AWS_ROLE_ARN",
	                                    "AWS_ROLE_SESSION_NAME",
	                                    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
	                                    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
	                                    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
	                                    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
	                                    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
	                                    "AWS_SHARED_CREDENTIALS_FILE",
	                                    "AWS_CONFIG_FILE",
	                                    "AWS_ENDPOINT_URL_STS",
	                                    "NO_PROXY",
	                                    "no_proxy"};
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
		unsetenv(names[i]);
	setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
}

static int
setup(void **state)
{
	struct bed *bed = calloc(1, sizeof *bed);
	assert_non_null(bed);
	snprintf(bed->dir, sizeof bed->dir, "/var/tmp/pawl-cred-XXXXXX");
	assert_non_null(mkdtemp(bed->dir));
	clear_environment();
	setenv("HOME", bed->dir, 1);
	*state = bed;
	return 0;
}

static int
teardown(void **state)
{
	struct bed *bed = *state;
	assert_int_equal(fd_remove_tree(AT_FDCWD, bed->dir, NULL), 0);
	free(bed);
	return 0;
}

static const char *
put_file(struct bed *bed, const char *name, const char *text)
{
	snprintf(bed->path, sizeof bed->path, "%s/.aws", bed->dir);
	mkdir(bed->path, 0700);
	snprintf(bed->path, sizeof bed->path, "%s/.aws/%s", bed->dir, name);
	FILE *f = fopen(bed->path, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
	chmod(bed->path, 0600);
	return bed->path;
}

/* As Kubernetes mounts a secret: the name is a link to ..data/name, and ..data is one, too. */
static const char *
put_mounted_file(struct bed *bed, const char *name, const char *text)
{
	char path[sizeof bed->path], inner[80], target[80];
	snprintf(path, sizeof path, "%s/.aws/..first", bed->dir);
	put_file(bed, "unused", "");
	mkdir(path, 0700);
	snprintf(inner, sizeof inner, "..first/%s", name);
	put_file(bed, inner, text);
	snprintf(path, sizeof path, "%s/.aws/..data", bed->dir);
	assert_true(symlink("..first", path) == 0 || errno == EEXIST);
	snprintf(target, sizeof target, "..data/%s", name);
	snprintf(bed->path, sizeof bed->path, "%s/.aws/%s", bed->dir, name);
	assert_int_equal(symlink(target, bed->path), 0);
	return bed->path;
}

static int
get(struct cred_keys *keys, struct pawl_error *err)
{
	struct cred *c = NULL;
	*err = (struct pawl_error){0};
	assert_int_equal(cred_new(s3_cred_find, &(struct cred_where){.region = "eu-test-1"}, &c, err), 0);
	int rc = cred_get(c, false, keys, err);
	cred_free(c);
	return rc;
}

static void
assert_keys(const char *access_key, const char *secret_key, const char *token, const char *source)
{
	struct cred_keys keys = {0};
	struct pawl_error err;
	if (get(&keys, &err) < 0)
		fail_msg("%s", err.message);
	assert_string_equal(keys.access_key, access_key);
	assert_string_equal(keys.secret_key, secret_key);
	assert_string_equal(keys.session_token, token);
	assert_string_equal(keys.source, source);
}

static void
assert_fails(int code, const char *part)
{
	struct cred_keys keys = {0};
	struct pawl_error err;
	int rc = get(&keys, &err);
	if (rc != code || strstr(err.message, part) == NULL)
		fail_msg("%d (%s), expected %d and \"%s\"", rc, err.message, code, part);
	assert_null(strstr(err.message, CANARY));
}

static void
test_the_environment_comes_first(void **state)
{
	put_file(*state, "credentials", "[default]\naws_access_key_id = FILE\naws_secret_access_key = s\n");
	setenv("AWS_ACCESS_KEY_ID", "ENV", 1);
	assert_fails(PAWL_EAUTH, "has AWS_ACCESS_KEY_ID, but no AWS_SECRET_ACCESS_KEY");
	setenv("AWS_SECRET_ACCESS_KEY", CANARY, 1);
	assert_keys("ENV", CANARY, "", "the environment");
	setenv("AWS_SESSION_TOKEN", "t", 1);
	assert_keys("ENV", CANARY, "t", "the environment");
	/* But a profile that is asked for by name goes before. */
	setenv("AWS_PROFILE", "default", 1);
	assert_keys("FILE", "s", "", "profile \"default\"");
}

static void
test_P18_keys_that_cannot_stand_in_a_header_are_refused(void **state)
{
	(void)state;
	setenv("AWS_ACCESS_KEY_ID", "a\r\nX-Evil: 1", 1);
	setenv("AWS_SECRET_ACCESS_KEY", CANARY, 1);
	assert_fails(PAWL_EAUTH, "the access key id is malformed");
	setenv("AWS_ACCESS_KEY_ID", "a", 1);
	setenv("AWS_SECRET_ACCESS_KEY", CANARY " x", 1);
	assert_fails(PAWL_EAUTH, "the secret access key is malformed");
	setenv("AWS_SECRET_ACCESS_KEY", "s", 1);
	setenv("AWS_SESSION_TOKEN", CANARY "\n", 1);
	assert_fails(PAWL_EAUTH, "the session token is malformed");
}

static void
test_profiles_of_both_files(void **state)
{
	struct bed *bed = *state;
	assert_fails(PAWL_EAUTH, "no credentials for S3");
	put_file(
		bed, "credentials",
		"# a comment\n[default]\r\naws_access_key_id=D\r\naws_secret_access_key = d/+=\r\n"
		"[work]\naws_access_key_id = W\naws_secret_access_key = w\naws_session_token = t\n[half]\naws_access_key_id = H\n");
	put_file(bed, "config",
	         "[profile work]\nregion = eu-west-3\naws_access_key_id = IGNORED\n[profile c]\n"
	         "aws_access_key_id = C\naws_secret_access_key = c\n"
	         "[profile r]\nrole_arn = arn\nsource_profile = work\n");
	assert_keys("D", "d/+=", "", "profile \"default\"");
	setenv("AWS_PROFILE", "work", 1);
	assert_keys("W", "w", "t", "profile \"work\"");
	setenv("AWS_PROFILE", "c", 1);
	assert_keys("C", "c", "", "profile \"c\"");
	setenv("AWS_PROFILE", "half", 1);
	assert_fails(PAWL_EAUTH, "profile \"half\": has no aws_secret_access_key");
	setenv("AWS_PROFILE", "r", 1);
	assert_fails(PAWL_EAUTH, "credential_process");
	setenv("AWS_PROFILE", "nobody", 1);
	assert_fails(PAWL_EUSAGE, "profile \"nobody\" (AWS_PROFILE) is neither in");
}

static void
test_settings_of_a_profile_and_its_services(void **state)
{
	put_file(
		*state, "config",
		"[default]\nregion = r1\n[profile x]\nservices = sv\ns3 =\n  addressing_style = path\n  max = 3\nregion=r2\n"
		"[services sv]\ns3 =\n  endpoint_url = http://e:1\nsts =\n  endpoint_url = http://no\n");
	struct s3_profile p;
	assert_int_equal(s3_profile_read(&p, NULL), 0);
	assert_string_equal(s3_profile_get(&p, "region"), "r1");
	assert_null(s3_profile_get(&p, "s3.addressing_style"));
	s3_profile_clear(&p);
	setenv("AWS_PROFILE", "x", 1);
	assert_int_equal(s3_profile_read(&p, NULL), 0);
	assert_string_equal(s3_profile_get(&p, "region"), "r2");
	assert_string_equal(s3_profile_get(&p, "s3.addressing_style"), "path");
	assert_string_equal(s3_profile_get(&p, "services.s3.endpoint_url"), "http://e:1");
	s3_profile_clear(&p);
}

static void
test_a_file_that_everybody_may_write_is_refused(void **state)
{
	const char *path = put_file(*state, "credentials",
	                            "[default]\naws_access_key_id = A\naws_secret_access_key = " CANARY "\n");
	chmod(path, 0666);
	assert_fails(PAWL_EAUTH, "all users can write to it");
}

static void
test_P18_files_that_are_links_are_followed_and_the_mode_of_their_target_counts(void **state)
{
	const char *path = put_mounted_file(*state, "credentials",
	                                    "[default]\naws_access_key_id = A\naws_secret_access_key = " CANARY "\n");
	assert_keys("A", CANARY, "", "profile \"default\"");
	chmod(path, 0666);
	assert_fails(PAWL_EAUTH, "all users can write to it");
}

static void
test_credential_process(void **state)
{
	struct bed *bed = *state;
	char text[512];
	snprintf(text, sizeof text, "[default]\ncredential_process = cat \"%s/.aws/out put\"\n", bed->dir);
	put_file(bed, "config", text);
	assert_fails(PAWL_EAUTH, "cat: ended with status 1");
	put_file(bed, "out put",
	         "{\"Version\": 1, \"AccessKeyId\": \"P\", \"SecretAccessKey\": \"ps\", \"SessionToken\": \"pt\", "
	         "\"Expiration\": \"2099-01-01T00:00:00Z\"}");
	assert_keys("P", "ps", "pt", "profile \"default\"");
	put_file(bed, "out put",
	         "{\"Version\": 1, \"AccessKeyId\": \"P\", \"SecretAccessKey\": \"" CANARY "\", "
	         "\"Expiration\": \"2001-01-01T00:00:00Z\"}");
	assert_fails(PAWL_EAUTH, "the credentials expired");
	put_file(bed, "out put", "{\"AccessKeyId\": \"P\", \"Secret\": \"" CANARY "\"}");
	assert_fails(PAWL_EAUTH, "has no AccessKeyId or no SecretAccessKey");
	put_file(bed, "out put", CANARY);
	assert_fails(PAWL_ECORRUPT, "profile \"default\"");
}

static void
test_container(void **state)
{
	struct bed *bed = *state;
	char url[128];
	bed->http.rules[0] =
		(struct http_bed_rule){"GET /creds?x=1",
	                               ANSWER("200 OK", "application/json",
	                                      "{\"AccessKeyId\":\"C\",\"SecretAccessKey\":\"cs\",\"Token\":\"ct\","
	                                      "\"Expiration\":\"2099-01-01T00:00:00Z\"}"),
	                               0};
	http_bed_open(&bed->http);
	snprintf(url, sizeof url, "%s/creds?x=1", bed->http.url);
	setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url, 1);
	setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "auth" CANARY, 1);
	assert_keys("C", "cs", "ct", "the container's credentials");
	assert_non_null(strstr(bed->http.last, "\r\nAuthorization: auth" CANARY "\r\n"));
	setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", put_file(bed, "token", "from-file\n"), 1);
	assert_keys("C", "cs", "ct", "the container's credentials");
	assert_non_null(strstr(bed->http.last, "\r\nAuthorization: from-file\r\n"));
	setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", put_mounted_file(bed, "linked", "from-link\n"), 1);
	assert_keys("C", "cs", "ct", "the container's credentials");
	assert_non_null(strstr(bed->http.last, "\r\nAuthorization: from-link\r\n"));
	unsetenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
	snprintf(url, sizeof url, "%s/other", bed->http.url);
	setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url, 1);
	assert_fails(PAWL_EAUTH, "status 404");
	bed->http.rules[1] = (struct http_bed_rule){"GET /other", ANSWER("503 Busy", "text/plain", CANARY), 0};
	assert_fails(PAWL_ETRANSIENT, "the container's credentials: the agent answered with status 503");
	/* http to another machine would give the authorization away. */
	setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://10.1.2.3/creds", 1);
	assert_fails(PAWL_EAUTH, "expected https");
	setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://localhost.example.org/creds", 1);
	assert_fails(PAWL_EAUTH, "expected https");
	http_bed_close(&bed->http);
}

static void
test_web_identity(void **state)
{
	struct bed *bed = *state;
	bed->http.rules[0] = (struct http_bed_rule){
		"POST / ",
		ANSWER("200 OK", "text/xml",
	               "<AssumeRoleWithWebIdentityResponse xmlns=\"x\"><AssumeRoleWithWebIdentityResult><Credentials>"
	               "<AccessKeyId>W</AccessKeyId><SecretAccessKey>ws</SecretAccessKey><SessionToken>wt</SessionToken>"
	               "<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult>"
	               "</AssumeRoleWithWebIdentityResponse>"),
		0};
	http_bed_open(&bed->http);
	setenv("AWS_ENDPOINT_URL_STS", bed->http.url, 1);
	setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/r", 1);
	setenv("AWS_WEB_IDENTITY_TOKEN_FILE", put_file(bed, "jwt", "a.b=" CANARY "\n"), 1);
	assert_keys("W", "ws", "wt", "the web identity");
	assert_non_null(strstr(bed->http.last, "&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr&RoleSessionName=pawl"
	                                       "&WebIdentityToken=a.b%3D" CANARY));
	setenv("AWS_WEB_IDENTITY_TOKEN_FILE", put_mounted_file(bed, "linked", "linked-" CANARY "\n"), 1);
	assert_keys("W", "ws", "wt", "the web identity");
	assert_non_null(strstr(bed->http.last, "&WebIdentityToken=linked-" CANARY));
	bed->http.rules[0].answer = ANSWER("403 No", "text/xml",
	                                   "<ErrorResponse><Error><Code>InvalidIdentityToken</Code><Message>" CANARY
	                                   "</Message></Error></ErrorResponse>");
	assert_fails(PAWL_EAUTH, "status 403 InvalidIdentityToken");
	bed->http.rules[0].answer = ANSWER("503 Busy", "text/plain", CANARY);
	assert_fails(PAWL_ETRANSIENT, "the token service answered with status 503");
	bed->http.rules[0].answer =
		ANSWER("400 No", "text/xml", "<ErrorResponse><Error><Code>Throttling</Code></Error></ErrorResponse>");
	assert_fails(PAWL_ETRANSIENT, "status 400 Throttling");
	bed->http.rules[0].answer = ANSWER("200 OK", "text/html", "<html>Sign in</html>");
	assert_fails(PAWL_EAUTH, "the web identity: the answer has no credentials");
	/* A missing token must not read as a missing run (P8). */
	setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/nonexistent/jwt", 1);
	assert_fails(PAWL_EAUTH, "/nonexistent/jwt: does not exist");
	http_bed_close(&bed->http);
}

/* The service is asked through a proxy, which sees the name of its host. */
static void
test_a_web_identity_in_China_is_taken_to_the_service_there(void **state)
{
	struct bed *bed = *state;
	struct cred_keys keys = {0};
	http_bed_open(&bed->http);
	setenv("https_proxy", bed->http.url, 1);
	const char *path = put_file(bed, "jwt", "t\n");
	assert_true(s3_cred_web_identity(path, "r", NULL, "cn-north-1", NULL, &keys, NULL) < 0);
	assert_memory_equal(bed->http.last, "CONNECT sts.cn-north-1.amazonaws.com.cn:443 ", 44);
	assert_true(s3_cred_web_identity(path, "r", NULL, "eu-west-1", NULL, &keys, NULL) < 0);
	assert_memory_equal(bed->http.last, "CONNECT sts.eu-west-1.amazonaws.com:443 ", 40);
	unsetenv("https_proxy");
	http_bed_close(&bed->http);
}

static void
test_instance_metadata_by_version_2(void **state)
{
	struct bed *bed = *state;
	bed->http.rules[0] =
		(struct http_bed_rule){"PUT /latest/api/token", ANSWER("200 OK", "text/plain", "tok" CANARY), 0};
	bed->http.rules[1] = (struct http_bed_rule){"GET /latest/meta-data/iam/security-credentials/ ",
	                                            ANSWER("200 OK", "text/plain", "my-role\n"), 0};
	bed->http.rules[2] =
		(struct http_bed_rule){"GET /latest/meta-data/iam/security-credentials/my-role",
	                               ANSWER("200 OK", "text/plain",
	                                      "{\"Code\":\"Success\",\"AccessKeyId\":\"I\",\"SecretAccessKey\":\"is\","
	                                      "\"Token\":\"it\",\"Expiration\":\"2099-01-01T00:00:00Z\"}"),
	                               0};
	http_bed_open(&bed->http);
	setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", bed->http.url, 1);
	assert_fails(PAWL_EAUTH, "no credentials");
	assert_int_equal(atomic_load(&bed->http.rules[0].seen), 0);
	unsetenv("AWS_EC2_METADATA_DISABLED");
	assert_keys("I", "is", "it", "the instance role");
	assert_non_null(strstr(bed->http.last, "\r\nX-aws-ec2-metadata-token: tok" CANARY "\r\n"));
	bed->http.rules[2].answer = ANSWER("404 No", "text/plain", CANARY);
	assert_fails(PAWL_EAUTH, "no credentials for the role");
	for (size_t i = 3; i-- > 0;) {
		bed->http.rules[i].answer = i > 0 ? "" : ANSWER("429 Busy", "text/plain", CANARY);
		assert_fails(PAWL_ETRANSIENT, "the instance metadata: ");
		bed->http.rules[i].answer = ANSWER("503 Busy", "text/plain", CANARY);
		assert_fails(PAWL_ETRANSIENT, "the instance metadata: answered with status 503");
	}
	http_bed_close(&bed->http);
}

/* The clock of the credentials: it stands still, and only a test moves it. 0 = the machine's. */
static int64_t frozen_ns;

int64_t __real_clock_unix_ns(void);
int64_t __wrap_clock_unix_ns(void);
int64_t
__wrap_clock_unix_ns(void)
{
	return frozen_ns ? frozen_ns : __real_clock_unix_ns();
}

/* A process that counts its calls in its answers, which live that long. */
static void
put_counter(struct bed *bed, int seconds)
{
	char text[600], when[32];
	time_t expires = (time_t)(__wrap_clock_unix_ns() / 1000000000) + seconds;
	struct tm tm;
	strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&expires, &tm));
	snprintf(
		text, sizeof text,
		"[default]\ncredential_process = sh -c 'cd %s; echo x >>n; echo \"{\\\"AccessKeyId\\\":\\\"K$(wc -l <n)\\\","
		"\\\"SecretAccessKey\\\":\\\"s\\\",\\\"Expiration\\\":\\\"%s\\\"}\"'\n",
		bed->dir, when);
	put_file(bed, "config", text);
}

static void
test_keys_are_renewed_before_they_expire(void **state)
{
	struct bed *bed = *state;
	struct cred *c = NULL;
	struct cred_keys keys;
	struct pawl_error err = {0};
	frozen_ns = __real_clock_unix_ns();
	put_counter(bed, 4);
	assert_int_equal(cred_new(s3_cred_find, &(struct cred_where){.region = "r"}, &c, NULL), 0);
	for (int i = 0; i < 3; i++) {
		if (cred_get(c, false, &keys, &err) < 0)
			fail_msg("%s", err.message);
		assert_string_equal(keys.access_key, "K1");
	}
	/* Refused by the server: again, at once. */
	put_counter(bed, 3600);
	assert_int_equal(cred_get(c, true, &keys, NULL), 0);
	assert_string_equal(keys.access_key, "K2");
	put_counter(bed, 3);
	assert_int_equal(cred_get(c, true, &keys, NULL), 0);
	frozen_ns += INT64_C(3200000000);
	put_counter(bed, 4);
	assert_int_equal(cred_get(c, false, &keys, NULL), 0);
	assert_string_equal(keys.access_key, "K4");
	/* A renewal that fails is not an error as long as the old ones are good. */
	frozen_ns += INT64_C(3000000000);
	put_file(bed, "config", "");
	assert_int_equal(cred_get(c, false, &keys, NULL), 0);
	assert_string_equal(keys.access_key, "K4");
	assert_int_equal(cred_get(c, true, &keys, NULL), PAWL_EAUTH);
	cred_free(c);
	frozen_ns = 0;
}

static void
test_times(void **state)
{
	(void)state;
	assert_int_equal(http_iso_time("1970-01-01T00:00:10Z"), 10);
	assert_int_equal(http_iso_time("1970-01-01T00:00:10.123Z"), 10);
	assert_int_equal(http_iso_time("1970-01-01T01:00:10+01:00"), 10);
	assert_int_equal(http_iso_time("1970-01-01T00:00:10"), -1);
	assert_int_equal(http_iso_time("yesterday"), -1);
}

int
main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_the_environment_comes_first),
		CASE(test_P18_keys_that_cannot_stand_in_a_header_are_refused),
		CASE(test_profiles_of_both_files),
		CASE(test_settings_of_a_profile_and_its_services),
		CASE(test_a_file_that_everybody_may_write_is_refused),
		CASE(test_P18_files_that_are_links_are_followed_and_the_mode_of_their_target_counts),
		CASE(test_credential_process),
		CASE(test_container),
		CASE(test_web_identity),
		CASE(test_a_web_identity_in_China_is_taken_to_the_service_there),
		CASE(test_instance_metadata_by_version_2),
		CASE(test_keys_are_renewed_before_they_expire),
		cmocka_unit_test(test_times),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
