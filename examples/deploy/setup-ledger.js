// Run by mongosh on one member, as often as one likes: what is there already stays as it is.
const read = (name) => JSON.parse(require("fs").readFileSync(`/deploy/${name}`, "utf8"));
const { ROOT_PASSWORD, CRAWLER_PASSWORD } = process.env;
const UNAUTHORIZED = 13; // once there is a user, nobody may ask without being one
const unlessThere = (make, ...codes) => { try { make(); } catch (error) { if (!codes.includes(error.code)) throw error; } };

unlessThere(() => rs.initiate(read("replica-set.json")), 23 /* AlreadyInitialized */, UNAUTHORIZED);
while (!db.hello().isWritablePrimary) sleep(200);

const admin = db.getSiblingDB("admin");
unlessThere(() => admin.createUser({ user: "root", pwd: ROOT_PASSWORD, roles: ["root"] }), 51003, UNAUTHORIZED);
admin.auth("root", ROOT_PASSWORD);

const crawl = db.getSiblingDB("crawl");
unlessThere(() => {
  const made = crawl.runCommand(read("mongodb-role.json"));
  if (!made.ok) throw made;
}, 51002);
unlessThere(() => crawl.createUser({ user: "crawler", pwd: CRAWLER_PASSWORD, roles: ["crawler"] }), 51003);
